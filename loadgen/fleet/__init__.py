"""Load actors that send requests and record every answer."""
