"""What the two halves of a job call things; importing this loads nothing else."""

TASK = "fedpoint"
ORDER, ANSWER = "order", "answer"
STATUS, STOP = "fedpoint.status", "fedpoint.stop"
HUB = "fedpoint.federation.flare.controller.HubController"
SITE = "fedpoint.federation.flare.executor.SiteExecutor"
KIT = "FEDPOINT_KIT"  # in the environment of a party's processes: its folder
