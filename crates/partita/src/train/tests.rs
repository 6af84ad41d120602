mod classes;
mod command;
mod finite;
mod run_file;
mod session;
