//! Where an error points, what it says, and that one run finds them all.

use super::*;

#[test]
fn an_error_is_drawn_with_line_column_caret_and_the_nearest_key() {
    assert_eq!(
        problems("image = \"x\"\n\ncpu_s = 4\n").render(false),
        "error: unknown key `cpu_s`\n --> Smolfile:3:1\n  |\n3 | cpu_s = 4\n  | ^^^^^ did you mean `cpus`?"
    );
}

#[test]
fn colour_is_used_only_on_request() {
    let problems = problems("cpus = 0");
    assert!(problems.render(true).contains('\u{1b}'));
    assert!(!problems.render(false).contains('\u{1b}'));
    assert_eq!(problems.to_string(), problems.render(false));
}

#[test]
fn one_run_finds_every_problem_in_the_order_of_the_file() {
    let problems = problems(
        "cpus = 0\nnett = true\n[health]\ninterval = \"x\"\nports = []\n[dev]\nenv = [\"=\", \"A=1\", \"=\"]",
    );
    let titles: Vec<_> = problems.list().iter().map(Problem::title).collect();
    assert_eq!(
        titles,
        [
            "invalid value for `cpus`",
            "unknown key `nett`",
            "invalid value for `health.interval`",
            "unknown key `health.ports`",
            "invalid value for `dev.env[0]`",
            "invalid value for `dev.env[2]`",
        ]
    );
    assert_eq!(problems.position(&problems.list()[5]), (7, 20));
}

#[test]
fn many_problems_are_counted_rather_than_drawn() {
    let lines: Vec<_> = (0..30).map(|n| format!("key{n} = 1")).collect();
    let drawn = problems(&lines.join("\n")).render(false);
    assert_eq!(drawn.matches("error:").count(), 20);
    assert!(drawn.ends_with("and 10 more problems"), "{drawn}");
}

#[test]
fn control_characters_of_the_file_do_not_reach_the_terminal() {
    let problems = problems("\"\\u001b[31m\" = 1\nnet = \"\\u001b[2J\"\ncpu = \"\\u001b[2J\"\n");
    assert!(!problems.render(false).contains('\u{1b}'));
}

/// Checks, for each text, the place of the first problem and words of what is drawn.
fn pointed_at(cases: &[(&str, &str, &str)]) {
    for (text, place, words) in cases {
        let drawn = problems(text).render(false);
        assert!(drawn.contains(&format!("Smolfile{place}")), "{text}\nexpected {place}\n{drawn}");
        assert!(drawn.contains(words), "{text}\nexpected {words}\n{drawn}");
        assert!(drawn.contains('^'), "{text}\n{drawn}");
    }
}

#[test]
fn a_value_of_the_wrong_type_is_pointed_at() {
    pointed_at(&[
        ("cpus = \"two\"", ":1:8", "expected an integer from 1 to 32, found a string"),
        ("memory = true", ":1:10", "found a boolean"),
        ("memory = 1.5", ":1:10", "found a float"),
        ("net = \"yes\"", ":1:7", "expected true or false, found a string"),
        ("env = \"A=1\"", ":1:7", "expected an array"),
        ("env = [1]", ":1:8", "`env[0]` has the wrong type"),
        ("init = [\"a\",\n  2]", ":2:3", "`init[1]`"),
        ("network = true", ":1:11", "expected a table"),
        ("[[dev]]\n", ":1:1", "expected a table, found an array"),
        ("user = 1000", ":1:8", "expected a string such as \"1000:1000\""),
        ("image = 1979-05-27", ":1:9", "found a date or time"),
        ("[health]\nexec = 3", ":2:8", "a list of words"),
        ("secrets = [\"A\"]", ":1:11", "expected a table"),
    ]);
}

#[test]
fn a_number_or_size_out_of_range_is_pointed_at() {
    pointed_at(&[
        ("cpus = 33", ":1:8", "between 1 and 32"),
        ("cpus = 0", ":1:8", "between 1 and 32"),
        ("cpus = -1", ":1:8", "between 1 and 32"),
        ("cpus = 99999999999999999999999999999999999999999999", ":1:8", "number"),
        ("memory = 63", ":1:10", "at least 64 MiB"),
        ("memory = \"63MiB\"", ":1:10", "at least 64 MiB"),
        ("memory = -5", ":1:10", "at least 64 MiB"),
        ("memory = \"512\"", ":1:10", "needs a unit"),
        ("memory = \"512MB\"", ":1:10", "whole MiB"),
        ("memory = \"5 bananas\"", ":1:10", "not a size"),
        ("memory = 99999999", ":1:10", "more than 1 TiB"),
        ("storage = \"1MiB\"", ":1:11", "16 MiB"),
        ("disk = 0", ":1:8", "16 MiB"),
        ("disk = 16384", ":1:8", "smaller than 16 TiB"),
        ("overlay = -1", ":1:11", "16 MiB"),
        ("disk = \"999999999999TiB\"", ":1:8", "too large"),
        ("[health]\nretries = 0", ":2:11", "at least 1"),
        ("[service]\nport = 65536", ":2:8", "not a port"),
        ("[restart]\nmax_retries = -1", ":2:15", "not between"),
    ]);
}

#[test]
fn a_bad_port_or_volume_is_pointed_at() {
    pointed_at(&[
        ("ports = [\n \"80\",\n \"http:80\"]", ":3:2", "not a port"),
        ("ports = [\"0:80\"]", ":1:10", "not a port"),
        ("ports = [\"80/sctp\"]", ":1:10", "not a protocol"),
        ("ports = [70000]", ":1:10", "not a port"),
        ("ports = [\"localhost:80:80\"]", ":1:10", "not an IP address"),
        ("ports = [\"+1:80\"]", ":1:10", "not a port"),
        ("ports = [\"8080:80\", \"127.0.0.1:8080:81\"]", ":1:21", "names a port of the host twice"),
        ("volumes = [\"/a:/etc\"]", ":1:12", "system folder"),
        ("volumes = [\"/a:/usr/./\"]", ":1:12", "system folder"),
        ("volumes = [\"/a:/\"]", ":1:12", "system folder"),
        ("volumes = [\"/a:/proc/x\"]", ":1:12", "system folder"),
        ("volumes = [\"/a:/b/../etc\"]", ":1:12", "`..` is not allowed"),
        ("volumes = [\"/a\"]", ":1:12", "not a volume"),
        ("volumes = [\"/a:b\"]", ":1:12", "not an absolute path"),
        ("volumes = [\"/a:/b:rox\"]", ":1:12", "not an option of a volume"),
        ("volumes = [\":/b\"]", ":1:12", "path is empty"),
        ("volumes = [\"$HOME/a:/b\"]", ":1:12", "not expanded"),
        ("volumes = [\"~bob/a:/b\"]", ":1:12", "your own home"),
        ("volumes = [\"a:/b\", \"c:/b/\"]", ":1:20", "names a folder of the guest twice"),
    ]);
}

#[test]
fn a_bad_variable_or_secret_is_pointed_at() {
    pointed_at(&[
        ("env = [\"=x\"]", ":1:8", "name is empty"),
        ("env = [\"A B=x\"]", ":1:8", "cannot contain"),
        ("env = [\"just words\"]", ":1:8", "cannot contain"),
        ("env = [\"1A\"]", ":1:8", "neither `NAME=VALUE`"),
        ("env = [\"A=\\u0000\"]", ":1:8", "NUL"),
        ("cmd = [\"\\u0000\"]", ":1:8", "NUL"),
        ("[secrets]\nA = \"hunter2\"", ":2:5", "a reference, not a value"),
        ("[secrets]\nA = { from_vault = \"x\" }", ":2:5", "has no source"),
        ("[secrets]\nA = { from_env = \"X\", from_file = \"/x\" }", ":2:23", "exclude each other"),
        ("[secrets]\nA = { from_file = \"x\" }", ":2:19", "relative path"),
        ("[secrets]\n\"A=\" = { from_env = \"X\" }", ":2:1", "cannot name a secret"),
    ]);
}

#[test]
fn what_cannot_be_had_is_refused_at_its_key() {
    pointed_at(&[
        ("gpu = true", ":1:1", "not supported"),
        ("gpu_vram = 4096", ":1:1", "not supported"),
        ("cuda = true", ":1:1", "not supported"),
        ("auto_graph = true", ":1:1", "not supported"),
        ("rosetta = true", ":1:1", "not supported"),
        ("[artifact]\noci_platform = \"linux/arm64\"", ":2:16", "x86-64 only"),
    ]);
}

#[test]
fn a_word_that_is_none_of_the_few_is_pointed_at() {
    pointed_at(&[
        ("cpu = \"v9\"", ":1:7", "did you mean \"v3\"?"),
        ("cpu = \"native\"", ":1:7", "one of \"portable\", \"v3\", \"host\""),
        ("[restart]\npolicy = \"on_failure\"", ":2:10", "did you mean \"on-failure\"?"),
        ("[snapshot]\nenabled = \"maybe\"", ":2:11", "true, false or \"auto\""),
        ("[snapshot]\nstart = \"Agent\"", ":2:9", "did you mean \"agent\"?"),
    ]);
}

#[test]
fn a_bad_length_of_time_is_pointed_at() {
    pointed_at(&[
        ("[health]\nexec = [\"x\"]\ninterval = \"ten\"", ":3:12", "not a length of time"),
        ("[health]\ninterval = \"0s\"", ":2:12", "longer than nothing"),
        ("[health]\ninterval = -1", ":2:12", "not a length of time"),
        ("[health]\ntimeout = \"10 parsecs\"", ":2:11", "not a length of time"),
        ("[restart]\nmax_backoff = \"2 years\"", ":2:15", "longer than a year"),
        ("[snapshot]\ntimeout = \"5us\"", ":2:11", "finer than a millisecond"),
    ]);
}

#[test]
fn a_bad_host_or_address_range_is_pointed_at() {
    pointed_at(&[
        ("[network]\nallow_cidrs = [\"10.0.0.0/33\"]", ":2:16", "prefix length from 0 to 32"),
        ("[network]\nallow_cidrs = [\"10.0.0/8\"]", ":2:16", "not an IP address"),
        ("[network]\ndeny_cidrs = [\"::/129\"]", ":2:15", "prefix length from 0 to 128"),
        ("[network]\nallow_hosts = [\"https://x.org/y\"]", ":2:16", "write \"x.org\""),
        ("[network]\nallow_hosts = [\"x.org:443\"]", ":2:16", "without a port"),
        ("[network]\nallow_hosts = [\"10.0.0.0/8\"]", ":2:16", "allow_cidrs"),
        ("[network]\nallow_hosts = [\"a.*.org\"]", ":2:16", "first labels"),
        ("[network]\nallow_hosts = [\"-a.org\"]", ":2:16", "not a host name"),
    ]);
}

#[test]
fn a_bad_command_path_or_user_is_pointed_at() {
    pointed_at(&[
        ("entrypoint = [\"\"]", ":1:14", "name is empty"),
        ("[health]\nexec = []", ":2:8", "empty command"),
        ("[health]\nexec = \" \"", ":2:8", "empty command"),
        ("workdir = \"app\"", ":1:11", "write \"/app\""),
        ("user = \"a b\"", ":1:8", "not a user's name"),
        ("user = \"4294967295\"", ":1:8", "out of range"),
        ("user = \"1:\"", ":1:8", "group is empty"),
        ("image = \"\"", ":1:9", "name is empty"),
        ("image = \" debian\"", ":1:9", "white space"),
        ("image = \"-\"", ":1:9", "--image -"),
    ]);
}

#[test]
fn what_does_not_go_together_is_pointed_at() {
    pointed_at(&[
        ("[[copy]]\nfrom = \"a\"", ":1:1", "`to` is missing"),
        ("[[copy]]\nfrom = \"../a\"\nto = \"/a\"", ":2:8", "`..` is not allowed"),
        ("[[copy]]\nfrom = \"/a\"\nto = \"/a\"", ":2:8", "build context"),
        ("[[copy]]\nfrom = \"a\"\nto = \"/a\"\nmode = 755", ":4:8", "write \"755\" or 0o755"),
        ("[[copy]]\nfrom = \"a\"\nto = \"/a\"\nmode = \"0999\"", ":4:8", "octal digits"),
        ("[snapshot]\nready = {}", ":2:9", "waits for nothing"),
        ("[snapshot]\nready = { exec = [\"a\"], port = 1 }", ":2:25", "exclude each other"),
        ("[kernel]\npath = \"a\"\nreference = \"b\"", ":3:1", "exclude each other"),
        ("[kernel]\ncmdline = \"a\\nb\"", ":2:11", "printable ASCII"),
        ("[service]\nprotocol = \"http\"", ":1:1", "`port` is missing"),
        ("[service]\nlisten = \"0.0.0.0\"", ":1:1", "`port` is missing"),
        ("[service]\nport = 1\nlisten = 2", ":3:1", "keep one"),
        ("[artifact]\n[pack]", ":2:2", "exclude each other"),
        ("[fork]\n[branch]", ":2:2", "exclude each other"),
    ]);
}

#[test]
fn broken_toml_is_pointed_at() {
    pointed_at(&[
        ("image = \"a\"\nimage = \"b\"", ":2:1", "duplicate"),
        ("image = ", ":1:", "not valid TOML"),
        ("image = \"a", ":1:", "not valid TOML"),
        ("[dev", ":1:", "not valid TOML"),
    ]);
}

#[test]
fn an_unknown_key_is_explained() {
    for (text, words) in [
        ("memroy = 1", "did you mean `memory`?"),
        ("CPUS = 1", "did you mean `cpus`?"),
        ("docker-socket = true", "did you mean `docker_socket`?"),
        ("mem = 512", "did you mean `memory`?"),
        ("command = []", "did you mean `cmd`?"),
        ("[nonsense]\nx = 1", "the keys of a Smolfile are"),
        ("[network]\nallow_host = []", "did you mean `allow_hosts`?"),
        ("[network]\nports = []", "`ports` belongs at the top of the file"),
        ("[dev]\nmemory = 512", "`memory` belongs at the top of the file"),
        ("ssh_agent = true", "`ssh_agent` belongs in `[auth]`"),
        ("allow_hosts = []", "`allow_hosts` belongs in `[network]`"),
        ("[secrets]\nA = { from_envv = \"x\", from_env = \"y\" }", "did you mean `from_env`?"),
        ("[fork]\nenabledd = true", "did you mean `enabled`?"),
    ] {
        let drawn = problems(text).render(false);
        assert!(drawn.contains(words), "{text}\nexpected {words}\n{drawn}");
    }
}

#[test]
fn a_list_longer_than_any_real_one_is_refused() {
    let list = "\"a\",".repeat(5000);
    assert!(problems(&format!("init = [{list}]")).render(false).contains("more than 4096 items"));
}

#[test]
fn a_large_file_of_nothing_but_unknown_keys_is_refused_in_bounded_time() {
    let lines: Vec<_> = (0..60_000).map(|n| format!("memroy{n} = 1")).collect();
    let begun = std::time::Instant::now();
    assert_eq!(problems(&lines.join("\n")).list().len(), 60_000);
    assert!(begun.elapsed().as_secs() < 20, "took {:?}", begun.elapsed());
}
