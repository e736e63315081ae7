"""Messages over mutual TLS by NVIDIA FLARE: kits, the hub's and the sites' halves of a job, and the commands' work."""
