//! The program `shardwright` as a user starts it, and how-to pages followed step by step.

mod bundle;
mod cli_bench;
mod cli_bundle;
mod cli_doctor;
mod cli_hostile;
mod cli_options;
mod cli_run;
mod cli_verify;
mod corpus;
mod howto_javascript;
mod howto_shim;
mod howto_soc_and_planner;
mod interrupts;
mod isolated;
mod isolation;
mod just_in_time;
mod kept;
mod pages;
mod plan_page;
mod preferences;
mod rounding;
mod runtime_only;
mod screens;
mod sensitivity;
mod terminal;
mod without_weights;
