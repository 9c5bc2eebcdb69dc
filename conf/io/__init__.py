"""Text, files and requests at the border to the outside: bounded, printable, durable."""
