"""What draws figures and blocks of the page; it computes nothing."""
