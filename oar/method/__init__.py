"""The paper, pure: tensors in, tensors and metrics out."""
