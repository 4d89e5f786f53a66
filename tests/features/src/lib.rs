//! Enables the features that dependencies have in a build of the whole workspace.
//!
//! **Job.** A build of one package has fewer features than the whole workspace, so cargo would
//! compile half of its dependencies a second time. With this package in addition (`-p PACKAGE -p
//! shardwright-test-features`) they have the same features, as far as these do not affect the
//! tested parts: no feature here includes a compiler of planners.
//!
//! **Not its job.** Code. A feature missing in its list only costs build time.
