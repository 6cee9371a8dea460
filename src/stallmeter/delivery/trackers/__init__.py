"""Where the recording is forwarded: one module or package per tracker."""
