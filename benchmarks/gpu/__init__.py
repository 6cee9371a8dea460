"""The case study of "TensorFlow Performance Analysis" rebuilt in PyTorch, judged by stallmeter."""
