//! The rules of the project: what may use what, and what can be read off the files.

mod arrows;
mod circles;
mod dependencies;
mod rules;
