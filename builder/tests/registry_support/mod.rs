//! Registries to test against: docker-registry with TLS and passwords, and a small one that fails on demand.
#![allow(missing_docs, unreachable_pub, clippy::missing_panics_doc, clippy::must_use_candidate)]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::image_support::run;

/// docker-registry on loopback; stopped when dropped.
pub struct Server {
    child: Child,
    port: u16,
    /// The certificate of the authority that signed the server's.
    pub authority: PathBuf,
}

impl Server {
    pub fn start(folder: &Path, user: &str, password: &str) -> Self {
        let folder = folder.join("registry");
        fs::create_dir_all(&folder).unwrap();
        certificates(&folder);
        let path = |name: &str| folder.join(name).display().to_string();
        run("htpasswd", &["-Bbc", &path("htpasswd"), user, password]);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: '{}'}}}}\n\
             http: {{addr: '127.0.0.1:{port}', tls: {{certificate: '{}', key: '{}'}}}}\n\
             auth: {{htpasswd: {{realm: test, path: '{}'}}}}\n",
            path("data"),
            path("leaf.pem"),
            path("leaf.key"),
            path("htpasswd"),
        );
        fs::write(folder.join("config.yml"), config).unwrap();
        let child = Command::new("docker-registry")
            .args(["serve", &path("config.yml")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is needed for this test");
        let server = Self { child, port, authority: folder.join("ca.pem") };
        server.wait();
        server
    }

    fn wait(&self) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "docker-registry does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority, and a server's certificate signed by it: rustls takes no authority's for a server's.
fn certificates(folder: &Path) {
    let path = |name: &str| folder.join(name).display().to_string();
    let key = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let authority = [
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=test authority",
        "-keyout",
        &path("ca.key"),
        "-out",
        &path("ca.pem"),
    ];
    run("openssl", &[&key[..], &authority].concat());
    let request = ["-subj", "/CN=localhost", "-keyout", &path("leaf.key"), "-out", &path("leaf.csr")];
    run("openssl", &[&key[..], &request].concat());
    fs::write(
        folder.join("extensions"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    run(
        "openssl",
        &[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &path("leaf.csr"),
            "-CA",
            &path("ca.pem"),
            "-CAkey",
            &path("ca.key"),
            "-CAcreateserial",
            "-extfile",
            &path("extensions"),
            "-out",
            &path("leaf.pem"),
        ],
    );
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This status.
    Status(u16),
    /// The connection closes without an answer.
    Hangup,
    /// A third of what is missing comes, then the connection closes.
    Truncate,
    /// One bit is wrong.
    Flip,
    /// More comes than there is.
    Endless,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// Failures per path; `None`: always, but for manifests.
    times: Option<u32>,
    failed: HashMap<String, u32>,
    no_ranges: bool,
    token: bool,
    ranges: u32,
    sent: u64,
}

/// A registry of one layout, over plain HTTP, that fails on demand.
pub struct Mock {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Mock {
    pub fn start(layout: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (layout, state) = (layout.clone(), Arc::clone(&shared));
                std::thread::spawn(move || serve(&stream, &layout, &state, port));
            }
        });
        Self { port, state }
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Each manifest and blob fails so often before it succeeds.
    pub fn fail_each(&self, fault: Fault, times: u32) {
        self.set(|state| (state.fault, state.times) = (Some(fault), Some(times)));
    }

    /// Blobs fail always.
    pub fn fail_blobs(&self, fault: Fault) {
        self.set(|state| (state.fault, state.times) = (Some(fault), None));
    }

    pub fn without_ranges(&self) {
        self.set(|state| state.no_ranges = true);
    }

    pub fn want_token(&self) {
        self.set(|state| state.token = true);
    }

    pub fn ranges(&self) -> u32 {
        self.state.lock().unwrap().ranges
    }

    pub fn sent(&self) -> u64 {
        self.state.lock().unwrap().sent
    }
}

struct Request {
    path: String,
    from: Option<usize>,
    token: Option<String>,
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let headers: HashMap<String, String> = lines
        .map_while(|line| line.ok().filter(|line| !line.is_empty()))
        .filter_map(|line| line.split_once(": ").map(|(k, v)| (k.to_lowercase(), v.to_owned())))
        .collect();
    let from = headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    Some(Request { path, from, token: headers.get("authorization").cloned() })
}

fn serve(stream: &TcpStream, layout: &Path, state: &Mutex<State>, port: u16) -> Option<()> {
    // As web servers answer what is no HTTP, such as the first bytes of TLS.
    let Some(request) = read_request(stream) else { return answer(stream, 400, "", b"", None) };
    let wants_token = state.lock().unwrap().token;
    if request.path.starts_with("/token") {
        return answer(stream, 200, "", br#"{"token":"secret","expires_in":60}"#, None);
    }
    if wants_token && request.token.as_deref() != Some("Bearer secret") {
        let challenge =
            format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"mock\"\r\n");
        return answer(stream, 401, &challenge, b"", None);
    }
    if request.path == "/v2/" {
        return answer(stream, 200, "", b"{}", None);
    }
    let Some(data) = find(layout, &request.path) else { return answer(stream, 404, "", b"", None) };
    let mut state = state.lock().unwrap();
    let fault = state.fault_for(&request.path);
    let from = request.from.filter(|_| !state.no_ranges).unwrap_or(0);
    state.ranges += u32::from(from > 0);
    let body = data.get(from..).unwrap_or_default();
    let sent = if fault == Some(Fault::Truncate) { body.len() / 3 } else { body.len() };
    state.sent += if fault.is_none() || fault == Some(Fault::Truncate) { sent as u64 } else { 0 };
    drop(state);
    let status = if from > 0 { 206 } else { 200 };
    let range = format!("Content-Range: bytes {from}-{}/{}\r\n", data.len().saturating_sub(1), data.len());
    let headers = if from > 0 { range.as_str() } else { "" };
    match fault {
        None => answer(stream, status, headers, body, None),
        Some(Fault::Status(code)) => answer(stream, code, "", b"not now", None),
        Some(Fault::Hangup) => None,
        Some(Fault::Truncate) => answer(stream, status, headers, &body[..sent], Some(body.len())),
        Some(Fault::Flip) => {
            let mut bad = body.to_vec();
            let middle = bad.len() / 2;
            bad[middle] ^= 1;
            answer(stream, status, headers, &bad, None)
        }
        Some(Fault::Endless) => answer(stream, status, headers, &[body, body].concat(), None),
    }
}

impl State {
    fn fault_for(&mut self, path: &str) -> Option<Fault> {
        let fault = self.fault?;
        let Some(times) = self.times else { return path.contains("/blobs/").then_some(fault) };
        let failed = self.failed.entry(path.to_owned()).or_default();
        *failed += 1;
        (*failed <= times).then_some(fault)
    }
}

fn find(layout: &Path, path: &str) -> Option<Vec<u8>> {
    let name = path.rsplit('/').next()?;
    if let Some(hex) = name.strip_prefix("sha256:") {
        return fs::read(layout.join("blobs/sha256").join(hex)).ok();
    }
    let index: serde_json::Value = serde_json::from_slice(&fs::read(layout.join("index.json")).ok()?).ok()?;
    let digest = index["manifests"][0]["digest"].as_str()?.to_owned();
    fs::read(layout.join("blobs/sha256").join(&digest[7..])).ok()
}

fn answer(
    mut stream: &TcpStream,
    status: u16,
    headers: &str,
    body: &[u8],
    claimed: Option<usize>,
) -> Option<()> {
    let length = claimed.unwrap_or(body.len());
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    stream.flush().ok()
}
