"""A site that dies while it notes an order: the record is as it was, or one line longer, and never called changed."""

import json

import pytest
from disk_steps import Photographer, every_step

from fedpoint.federation.site.chain import LOG, Chain, examine, origin

FIRST = origin("study", "north")


@pytest.mark.parametrize("power", [False, True])
def test_a_death_at_every_step_on_disk(power, tmp_path):
    folder, photos = tmp_path / "records", Photographer(tmp_path / "records", tmp_path / "album", power)
    folder.mkdir()
    sent = []  # how many answers had left when a photograph was taken
    look = photos.look

    def looking():
        before = len(photos.seen)
        look()
        if len(photos.seen) > before:
            sent.append(len(answered))

    answered = []
    with every_step(looking, photos.synced):
        made = Chain(folder, FIRST)
        for number in range(3):
            answered += [made.append({"asked": {"round": number}})]
    pictures = photos.photographs()
    assert len(pictures) == len(sent) > 3  # at least one of each answer's line on its way
    for picture, left in zip(pictures, sent, strict=True):
        seals = []
        examine(picture, FIRST, lambda entry, sha256: seals.append(sha256))  # noqa: B023
        assert seals[:left] == answered[:left]  # no answer left that is not noted
        Chain(picture, FIRST).append({"asked": {"round": 9}})
        assert examine(picture, FIRST).torn == 0
        last = json.loads((picture / LOG).read_text().splitlines()[-1])
        assert last["asked"] == {"round": 9}
