"""The console command `maxqps`: every verb under one name."""
