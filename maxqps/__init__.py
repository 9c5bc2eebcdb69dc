"""The console command `maxqps`: every verb of the rooms under one name."""
