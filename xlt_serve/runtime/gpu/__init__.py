"""What only GPUs need: providers, buckets, bound buffers, TensorRT engines."""
