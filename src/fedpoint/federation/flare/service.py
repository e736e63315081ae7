"""How does a party keep running without a terminal? A systemd unit and a container file of its kit, as text."""

from __future__ import annotations

import json
import sys

from fedpoint.core.errors import FedpointError
from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.protocol import OWN
from fedpoint.federation.site.engagement import newest_ones
from fedpoint.federation.site.policy import read_policy

UNIT = """\
# {title}. Install: copy to /etc/systemd/system, then: systemctl enable --now {name}
[Unit]
Description={title}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={place}
User={user}
KillSignal=SIGINT
SuccessExitStatus=130
Restart=on-failure
RestartSec=5
# 1: the site has stopped itself; 2: it cannot start. Both need a person.
RestartPreventExitStatus=1 2
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={folder}
{reads}UMask=0077

[Install]
WantedBy=multi-user.target
"""

CONTAINER = """\
# {title}. The kit holds a private key: it is mounted, never copied into the image.
#   podman build -t {name} -f Containerfile .
#   podman run --rm {run} {name}
FROM docker.io/library/python:{python}-slim
RUN pip install --no-cache-dir 'fedpoint[federation]=={fedpoint}' && useradd --create-home fedpoint
USER fedpoint
WORKDIR /kit
STOPSIGNAL SIGINT
ENTRYPOINT {command}
"""


def files(kit: Kit, user: str = "fedpoint") -> dict[str, str]:
    """The unit and the container file by their names."""
    if kit.party == "admin":
        raise FedpointError("the administrator's kit runs no service: give the server's kit, or a site's")
    command = "server" if kit.party == "server" else "site"
    name, title = f"fedpoint-{kit.project}-{kit.party}", f"fedpoint {kit.party} of the project {kit.project}"
    data = [] if kit.party == "server" else _data(kit)
    unit = UNIT.format(
        title=title,
        name=name,
        user=user,
        folder=_quoted(str(kit.folder)),
        place=_plain(str(kit.folder)).replace("%", "%%"),  # which takes no quotes
        reads="".join(f"ReadOnlyPaths={_quoted(path)}\n" for path in data),
        command=" ".join(map(_quoted, [sys.executable, "-m", "fedpoint", "federate", command, str(kit.folder)])),
    )
    ports = ["-p", f"{kit.port}:{kit.port}"] if kit.party == "server" else []
    mounts = ["-v", f"{kit.folder}:/kit", *(word for path in data for word in ("-v", f"{path}:{path}:ro")), *ports]
    container = CONTAINER.format(
        title=title,
        name=name,
        run=" ".join(map(_plain, mounts)),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        fedpoint=OWN.fedpoint,
        command=json.dumps(["fedpoint", "federate", command, "/kit"]),
    )
    return {f"{name}.service": unit, "Containerfile": container}


def _data(kit: Kit) -> list[str]:
    """The files that studies were approved with, and that of the policy."""
    used = [one.consent().data for one in newest_ones(kit.folder) if one.approved]
    policy = read_policy(kit.folder)
    allowed = [] if policy is None or policy.data is None else [str(kit.folder / policy.data)]
    return sorted({path for path in (*used, *allowed) if path is not None})


def _plain(word: str) -> str:
    """A word on a line of its own, as it is."""
    if not word.isprintable():
        raise FedpointError(f"{word!r} cannot be written into a unit: rename it")
    return word


def _quoted(word: str) -> str:
    """A word of a unit: % and $ stand for themselves.

    >>> _quoted("/srv/100% $HOME"), _quoted("--yes")
    ('"/srv/100%% $$HOME"', '"--yes"')
    """
    plain = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"'
