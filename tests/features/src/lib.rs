//! Enables the features that dependencies have in a build of the whole workspace.
//!
//! **Job.** A build of one package has fewer features than the workspace together, so cargo
//! compiles half of its dependencies a second time. With this package beside it (`-p PACKAGE -p
//! shardwright-test-features`) they have the same features, as far as those do not affect what is
//! tested: no feature here brings a compiler of planners.
//!
//! **Not its job.** Code. A feature missing in its list only costs build time.
