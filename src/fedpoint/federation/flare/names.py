"""What the two halves of a job call things; importing this loads nothing else."""

TASK = "fedpoint"
STATUS, STOP, FETCH = "fedpoint.status", "fedpoint.stop", "fedpoint.fetch"
HUB = "fedpoint.federation.flare.controller.HubController"
SITE = "fedpoint.federation.flare.executor.SiteExecutor"
KIT = "FEDPOINT_KIT"  # in the environment of a party's processes: its folder
CHANNEL, BOARD = "fedpoint", "board"
KEEPER = "fedpoint.federation.flare.post.BoardKeeper"
COURIER = "fedpoint.federation.flare.post.Courier"
