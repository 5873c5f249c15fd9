"""Point-to-point messages: send, receive, and all-to-all exchanges made of them."""
