//! The bundle: a directory that holds everything a model needs to run, and nothing that made it.
//!
//! **Job.** The format of a bundle: writing one piece by piece so that an interrupted build resumes, opening one
//! whatever it holds, proving every byte of it, and telling by its first bytes what any file of ours is.
//!
//! **Not its job.** It knows no checkpoint, no planner and no shim: artefacts, plans and texts are files to it whose
//! bytes it keeps and proves. It takes no decision about what belongs into a bundle.
