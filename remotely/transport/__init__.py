"""The transport of messages: sockets, keys, and the event loops that serve them."""
