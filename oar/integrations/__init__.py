"""OAR inside other people's trainers: the pure pieces of this package, composed for each of them."""
