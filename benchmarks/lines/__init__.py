"""Is the place in the code named that the time is lost in? Drawn programs, whose truth is in their source."""
