"""Cases for a backend, one file for each family. Every function is one case and gets the `World` it runs in."""
