//! Runs a helper program to its end.
