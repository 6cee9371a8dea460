"""What is measured besides the loop: host, GPU, loader."""
