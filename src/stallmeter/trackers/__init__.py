"""Where the recording is forwarded: one file per tracker."""
