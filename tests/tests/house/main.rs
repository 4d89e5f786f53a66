//! The rules of the house: what may use what, and what can be read off the files.

mod arrows;
mod dependencies;
mod rules;
