//! Loaders in processes of their own: the same bits as without, also when one of them is slow or dies.

use crate::command::partita;
use crate::metrics::LOADS;
use crate::trainee::{Case, Trainee};
use partita_offload::{Listener, Report, Secret, Stream, greet, send, welcome};
use partita_testkit::not_run;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// Statistics, random augmentation, and batches of 3, 3 and 2.
pub const SAMPLES: &str = "seed = 5\ntransform = \"standardize\"\n\
                       augmentation = {flip = [\"depth\", \"width\"], noise = 0.05}";

/// A process that serves, ended when dropped.
pub struct Server {
    child: Child,
    pub address: String,
}

impl Server {
    fn start(case: &Case, run: &str, more: &[&str]) -> Self {
        Self::at(case, run, "127.0.0.1:0", more)
    }

    fn at(case: &Case, run: &str, address: &str, more: &[&str]) -> Self {
        Self::of("loader", case, run, address, more)
    }

    pub fn of(role: &str, case: &Case, run: &str, address: &str, more: &[&str]) -> Self {
        let mut command = partita(&["serve", run, "--role", role, "--listen", address]);
        command.args(more).current_dir(case.folder());
        command.env("HOME", case.path("home"));
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.stdin(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once(" listens at ").unwrap();
        Self {
            address: address.to_owned(),
            child,
        }
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Ends it, and gives what it said.
    pub fn end(mut self) -> String {
        self.signal("TERM");
        let mut text = String::new();
        let errors = self.child.stderr.as_mut().unwrap();
        errors.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a run file with an output folder of its name.
pub fn run_file(case: &Case, name: &str, epochs: usize, top: &str, tables: &str) -> String {
    let text = format!(
        "model = \"tiny.model\"\ndata = \"set\"\noutput = \"{name}\"\nbatch = 3\nepochs = {epochs}\n{top}\n\
         [schedule]\nlearning_rate = 1e-3\n{tables}\n"
    );
    let file = format!("{name}.toml");
    fs::write(case.path(&file), text).unwrap();
    file
}

fn train(case: &Case, run: &str) -> Output {
    case.command(run).stdin(Stdio::null()).output().unwrap()
}

/// What a training that must succeed says, but for its progress.
pub fn trained(case: &Case, run: &str) -> String {
    let output = train(case, run);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{run}: {text}");
    let lines = text.lines().filter(|line| line.starts_with("partita: "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Makes a training keep its samples in memory.
pub fn stored(case: &Case, run: &str) {
    let text = fs::read_to_string(case.path(run)).unwrap();
    let table = "data = { path = \"set\", store = \"memory\" }";
    fs::write(case.path(run), text.replace("data = \"set\"", table)).unwrap();
}

/// What a training that must not start says.
pub fn refusal(case: &Case, run: &str) -> String {
    let output = train(case, run);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{run}: {text}");
    assert!(!case.path(run.strip_suffix(".toml").unwrap()).exists());
    text
}

/// Losses and metrics of all epochs, and the bytes of the weights.
pub fn bits(case: &Case, name: &str) -> (Vec<Value>, Vec<u8>) {
    let text = fs::read_to_string(case.path(name).join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    let mut epochs = result["epochs"].as_array().unwrap().clone();
    for epoch in &mut epochs {
        let validation = epoch["validation"].as_object_mut().unwrap();
        validation.remove("seconds");
        for key in LOADS.into_iter().chain(["seconds"]) {
            epoch.as_object_mut().unwrap().remove(key);
        }
    }
    let weights = fs::read(case.path(name).join("weights.safetensors")).unwrap();
    (epochs, weights)
}

#[test]
fn losses_and_weights_with_loaders_have_the_bits_of_those_without() {
    let case = Case::new();
    // (ranks, strategy, loaders): as many, fewer and more than ranks.
    for (ranks, strategy, loaders) in [(1, "data=1", 1), (2, "depth=2", 1), (2, "data=2", 3)] {
        let top = format!("{SAMPLES}\nranks = {ranks}\nstrategy = \"{strategy}\"");
        let plain = run_file(&case, "plain", 3, &format!("{top}\noverwrite = true"), "");
        assert_eq!(trained(&case, &plain), "");
        let table = format!("[offload]\nloaders = {loaders}\ncores = \"0\"");
        let with = run_file(
            &case,
            "with",
            3,
            &format!("{top}\noverwrite = true"),
            &table,
        );
        assert_eq!(trained(&case, &with), "", "{strategy}");
        assert!(
            bits(&case, "with") == bits(&case, "plain"),
            "{strategy}, {loaders} loaders"
        );
    }
}

#[test]
fn trainings_share_a_loader_over_a_socket_file_and_resume_with_it() {
    let case = Case::new();
    let plain = run_file(&case, "plain", 4, SAMPLES, "");
    let loader = Server::at(&case, &plain, "unix:socket", &[]);
    assert_eq!(loader.address, "unix:socket");
    let table = "[checkpoint]\nevery_steps = 4\nkeep = 9\n[offload]\nloaders = [\"unix:socket\"]";
    let runs = ["first", "second"].map(|name| run_file(&case, name, 4, SAMPLES, table));
    thread::scope(|scope| {
        let both = runs
            .each_ref()
            .map(|run| scope.spawn(|| trained(&case, run)));
        for one in both {
            assert_eq!(one.join().unwrap(), "");
        }
    });
    trained(&case, &plain);
    assert!(bits(&case, "first") == bits(&case, "plain"));
    assert!(bits(&case, "second") == bits(&case, "plain"));
    // In the middle of an epoch.
    let checkpoint = "first/checkpoints/step-000000004";
    let mut resumed = case.command("second.toml");
    let output = resumed.args(["--resume", checkpoint]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(bits(&case, "second") == bits(&case, "plain"));
    let said = loader.end();
    assert_eq!(
        said.matches("rank 0 of 1 at unix:socket: ").count(),
        3,
        "{said}"
    );
    assert!(!case.path("socket").exists());
    // Samples and targets of each step, requested once: 4 steps in each of 4 epochs, and 11 after the checkpoint.
    assert_eq!(said.matches(": 32 pieces,").count(), 2, "{said}");
    assert_eq!(said.matches(": 22 pieces,").count(), 1, "{said}");
}

#[test]
fn memory_of_a_loader_is_bounded_by_credits_and_a_slow_one_only_takes_longer() {
    let case = Case::new();
    let plain = run_file(&case, "plain", 2, SAMPLES, "");
    trained(&case, &plain);
    for (name, credits, delay) in [("slow", 1, "4ms"), ("fast", 3, "1us")] {
        let loader = Server::start(&case, &plain, &["--delay", delay]);
        let table = format!(
            "[offload]\nloaders = [\"{}\"]\ncredits = {credits}",
            loader.address
        );
        let run = run_file(&case, name, 2, SAMPLES, &table);
        assert_eq!(trained(&case, &run), "");
        assert!(bits(&case, name) == bits(&case, "plain"), "{name}");
        let said = loader.end();
        let (_, held) = said.split_once("at most ").unwrap();
        let held: usize = held.split(' ').next().unwrap().parse().unwrap();
        // One of them may have left just now.
        assert!((1..=credits + 1).contains(&held), "{said}");
    }
}

/// What a training says whose loader gets a signal in the second epoch.
fn disturbed(case: &Case, signal: &str, more: &str) -> String {
    let plain = run_file(case, "plain", 6, SAMPLES, "");
    trained(case, &plain);
    // Slow enough that the training cannot end before the signal.
    let loader = Server::start(case, &plain, &["--delay", "10ms"]);
    let address = &loader.address;
    let table = format!("[offload]\nloaders = [\"{address}\"]\n{more}");
    let run = run_file(case, "disturbed", 6, SAMPLES, &table);
    let trainee = Trainee::started(&mut case.command(&run), "epoch 1/");
    loader.signal(signal);
    let (status, said) = trainee.end();
    assert!(status.success(), "{said}");
    assert!(bits(case, "disturbed") == bits(case, "plain"), "{said}");
    let warning = format!("rank 0 lost the loader at {address} before step ");
    assert_eq!(said.matches(&warning).count(), 1, "{said}");
    assert!(
        said.contains("the rank reads its samples itself from here on"),
        "{said}"
    );
    let result = fs::read_to_string(case.path("disturbed/result.json")).unwrap();
    assert!(result.contains(&warning), "the result repeats the warning");
    said
}

#[test]
fn a_training_whose_loader_is_killed_loads_itself_to_the_same_bits() {
    let said = disturbed(&Case::new(), "KILL", "");
    assert!(said.contains("it closed the connection"), "{said}");
}

#[test]
fn a_training_whose_loader_hangs_loads_itself_to_the_same_bits() {
    let said = disturbed(&Case::new(), "STOP", "timeout = \"300 ms\"");
    assert!(said.contains("it did not answer in time"), "{said}");
}

#[test]
fn a_rank_that_loses_one_of_its_loaders_goes_on_with_the_others() {
    let case = Case::new();
    let plain = run_file(&case, "plain", 6, SAMPLES, "");
    trained(&case, &plain);
    let loaders = [(); 2].map(|()| Server::start(&case, &plain, &["--delay", "10ms"]));
    let [first, second] = loaders.each_ref().map(|loader| &loader.address);
    let table = format!("[offload]\nloaders = [\"{first}\", \"{second}\"]");
    let run = run_file(&case, "disturbed", 6, SAMPLES, &table);
    let trainee = Trainee::started(&mut case.command(&run), "epoch 1/");
    loaders[0].signal("KILL");
    let (status, said) = trainee.end();
    assert!(status.success(), "{said}");
    assert!(bits(&case, "disturbed") == bits(&case, "plain"), "{said}");
    assert_eq!(said.matches("lost the loader").count(), 1, "{said}");
    assert!(said.contains("its 1 other loader(s) go on"), "{said}");
}

#[test]
fn a_loader_of_another_run_refuses_and_names_the_difference() {
    let case = Case::new();
    let own = run_file(&case, "own", 2, SAMPLES, "");
    let loader = Server::start(&case, &own, &[]);
    let table = format!("[offload]\nloaders = [\"{}\"]", loader.address);
    let other = run_file(&case, "other", 2, "seed = 5\ntransform = \"log1p\"", &table);
    let text = refusal(&case, &other);
    let parts = [
        "refuses: `transform` or `augmentation` is",
        "at the loader, and LogOnePlus at the trainer",
        &loader.address,
    ];
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let said = loader.end();
    assert!(said.contains("refused rank 0 of 1"), "{said}");
}

#[test]
fn a_loader_outlives_garbage_on_its_port() {
    let case = Case::new();
    let plain = run_file(&case, "plain", 1, SAMPLES, "");
    let loader = Server::start(&case, &plain, &[]);
    let unproven = [b"partita\x02".as_slice(), &[7; 64], b"\x02\0\0\0{}"].concat();
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"partita\x07",
        b"partita\x02\xff\xff\xff\xff",
        &unproven,
    ];
    for bytes in garbage {
        let mut stream = std::net::TcpStream::connect(&loader.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // It closes the connection, and tells only who it is and that this is no proof.
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        assert!(told.len() <= 8 + 32 + 1, "{} bytes", told.len());
    }
    let table = format!("[offload]\nloaders = [\"{}\"]", loader.address);
    let run = run_file(&case, "with", 1, SAMPLES, &table);
    trained(&case, &plain);
    assert_eq!(trained(&case, &run), "");
    assert!(bits(&case, "with") == bits(&case, "plain"));
    let said = loader.end();
    assert_eq!(
        said.matches("is no trainer that this loader knows").count(),
        4,
        "{said}"
    );
    assert!(said.contains("version 7 of the protocol"), "{said}");
}

#[test]
fn addresses_without_a_loader_are_refused_before_the_training_starts() {
    let case = Case::new();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap();
    let answering = thread::spawn(move || {
        let (mut stream, _) = stranger.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let table = format!("[offload]\nloaders = [\"{address}\"]");
    let text = refusal(&case, &run_file(&case, "stranger", 1, "", &table));
    assert!(
        text.contains("is no loader of this version of Partita"),
        "{text}"
    );
    answering.join().unwrap();
    // Nobody listens there any more.
    let table = format!("[offload]\nloaders = [\"{address}\"]\nconnect_timeout = \"50 ms\"");
    let text = refusal(&case, &run_file(&case, "nobody", 1, "", &table));
    let advice = format!("partita serve --role loader --listen {address}");
    assert!(text.contains(&advice), "{text}");
    for (table, part) in [
        ("loaders = [\"node7\"]", "key `offload.loaders` is"),
        ("loader = 1", "help: try `offload.loaders`"),
        ("credits = 0", "a whole number from 1 to 1024"),
        ("cores = \"3-1\"", "a list of cores"),
        ("timeout = \"90 s\"", "below `watchdog`, which is 60 s"),
    ] {
        let table = format!("[offload]\n{table}");
        let text = refusal(&case, &run_file(&case, "refused", 1, "", &table));
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// A new file with a secret, and the options that name it on both sides.
fn secret(case: &Case, name: &str) -> (String, String) {
    let path = case.path(name);
    Secret::of_user(&path).unwrap();
    let path = path.display().to_string();
    let key = format!("secret = \"{path}\"");
    (path, key)
}

#[test]
fn who_has_another_secret_is_told_nothing() {
    let case = Case::new();
    let own = run_file(&case, "own", 1, SAMPLES, "");
    let (served, same) = secret(&case, "served");
    let (_, other) = secret(&case, "other");
    let loader = Server::start(&case, &own, &["--secret", &served]);
    let address = loader.address.clone();
    let table = |key: &str| format!("[offload]\nloaders = [\"{address}\"]\n{key}");
    let run = run_file(&case, "with", 1, SAMPLES, &table(&same));
    assert_eq!(trained(&case, &run), "");
    // Also a trainer of another run, whose settings differ.
    let refused = run_file(&case, "refused", 1, "seed = 6", &table(&other));
    let text = refusal(&case, &refused);
    assert!(text.contains("has another secret"), "{text}");
    assert!(text.contains("--secret of `partita serve`"), "{text}");
    let said = loader.end();
    assert!(said.contains("it has another secret"), "{said}");
    // A secret that others may read is none.
    fs::set_permissions(case.path("served"), fs::Permissions::from_mode(0o644)).unwrap();
    let text = refusal(&case, &run_file(&case, "open", 1, SAMPLES, &table(&same)));
    assert!(text.contains("may be read by others"), "{text}");
}

/// A process that greets as one of its role, and then does what it is told to.
fn pretender(
    case: &Case,
    then: impl FnOnce(Stream) + Send + 'static,
) -> (String, String, thread::JoinHandle<()>) {
    let (path, key) = secret(case, "pretended");
    let secret = Secret::read(path.as_ref()).unwrap();
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().to_string();
    let running = thread::spawn(move || {
        let (stream, _) = loop {
            if let Some(found) = listener.accept().unwrap() {
                break found;
            }
        };
        let mut greeted = greet(stream, &secret).unwrap();
        let _: Value = greeted.work().unwrap();
        then(welcome(greeted).unwrap());
    });
    (address, key, running)
}

#[test]
fn a_loader_that_drips_is_replaced() {
    let case = Case::new();
    let (address, key, running) = pretender(&case, |mut stream| {
        stream.write_all(&1000u32.to_le_bytes()).unwrap();
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let table = format!("[offload]\nloaders = [\"{address}\"]\ntimeout = \"300 ms\"\n{key}");
    let said = trained(&case, &run_file(&case, "drips", 1, SAMPLES, &table));
    let lost = format!("lost the loader at {address} before step 1: it did not answer in time");
    assert!(said.contains(&lost), "{said}");
    running.join().unwrap();
}

#[test]
fn a_validator_that_never_ends_is_replaced() {
    let case = Case::new();
    let (address, key, running) = pretender(&case, |stream| {
        let mut output = stream.try_clone().unwrap();
        let taking = thread::spawn(move || {
            let mut stream = stream;
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        while send(&mut output, &Report::<Value>::Working { done: 1 }).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
        taking.join().unwrap();
    });
    let table = format!("[offload]\nvalidators = [\"{address}\"]\ntimeout = \"100 ms\"\n{key}");
    let said = trained(&case, &run_file(&case, "stalls", 1, SAMPLES, &table));
    let lost = format!("{address}: it answers, but evaluated nothing for 1 s");
    assert!(said.contains(&lost), "{said}");
    running.join().unwrap();
}

#[test]
fn a_file_at_the_address_of_a_loader_stays() {
    let case = Case::new();
    let run = run_file(&case, "own", 1, SAMPLES, "");
    fs::write(case.path("thesis.txt"), "text").unwrap();
    let address = format!("unix:{}", case.path("thesis.txt").display());
    let mut command = partita(&["serve", &run, "--role", "loader", "--listen", &address]);
    let output = command.current_dir(case.folder()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("a file that is no socket is there"), "{text}");
    assert_eq!(fs::read_to_string(case.path("thesis.txt")).unwrap(), "text");
}

/// As another user of the node: one who has the same run, and a secret of their own.
#[test]
fn another_user_of_the_node_is_told_nothing() {
    let name = "another_user_of_the_node_is_told_nothing";
    let can = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "true"])
        .stderr(Stdio::null())
        .status();
    if !can.is_ok_and(|status| status.success()) {
        return not_run(name, "no other user (root and setpriv)");
    }
    let case = Case::new();
    let own = run_file(&case, "own", 1, SAMPLES, "");
    let (served, key) = secret(&case, "served");
    let loader = Server::start(&case, &own, &["--secret", &served]);
    let table = format!("[offload]\nloaders = [\"{}\"]\n", loader.address);
    run_file(&case, "guess", 1, "seed = 6", &table);
    run_file(&case, "take", 1, "seed = 6", &(table + &key));
    // Theirs, with the program, in a folder that they own; ours stays closed to them.
    let theirs = tempfile::tempdir().unwrap();
    let at = |name: &str| theirs.path().join(name);
    let names = ["tiny.model", "set", "guess.toml", "take.toml"];
    let mut copied = Command::new("cp");
    copied.arg("-r").args(names.map(|name| case.path(name)));
    copied.arg(env!("CARGO_BIN_EXE_partita")).arg(theirs.path());
    assert!(copied.status().unwrap().success());
    let mut owned = Command::new("chown");
    let owned = owned.args(["-R", "65534:65534"]).arg(theirs.path());
    assert!(owned.status().unwrap().success());
    let attack = |run: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(at("partita")).args(["train", run]);
        let command = command
            .current_dir(theirs.path())
            .env("HOME", theirs.path());
        let output = command.env_remove("XDG_CACHE_HOME").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = attack("guess.toml");
    assert!(text.contains("has another secret"), "{text}");
    // The settings that differ are not told.
    assert!(!text.contains("seed"), "{text}");
    let text = attack("take.toml");
    assert!(text.contains("ermission denied"), "{text}");
    let said = loader.end();
    assert!(said.contains("it has another secret"), "{said}");
}
