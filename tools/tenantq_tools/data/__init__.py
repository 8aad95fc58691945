"""The demo's data: the orders of six small shops, and the script that made them."""
