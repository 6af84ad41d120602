mod classes;
mod command;
mod run_file;
mod session;
