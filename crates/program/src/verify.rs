//! Proof, before anything runs, that a program is sound.
