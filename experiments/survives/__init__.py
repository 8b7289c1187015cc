"""Which findings about the embedded model hold on a pretrained one."""
