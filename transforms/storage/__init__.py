"""Files on disks and in buckets: reading, listing, publishing all of them or none; their variables and secrets."""
