"""What is asked of a backend, one file a family. Every function is one case and gets the `World` it is played in."""
