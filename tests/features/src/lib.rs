//! The features that crates of others have where the whole workspace is built.
//!
//! **Job.** A build of one package has fewer features than the workspace together, so cargo
//! compiles half of its dependencies a second time. With this package beside it
//! (`-p PACKAGE -p shardwright-test-features`) they have the same, as far as they say nothing about
//! what is tested: no feature here brings a compiler of planners.
//!
//! **Not its job.** Code. What is missing in its list costs time and nothing else.
