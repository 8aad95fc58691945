"""What operators run: the `tenantq` command, which parses, calls the library and prints."""
