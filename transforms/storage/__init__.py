"""Files on disks and in buckets: reading, listing, and publishing all of them or none."""
