//! A plain fuzzer: mutates the seeds of each target for so many seconds. `make fuzz-smoke` runs it.

use smolpack_fuzz::{TARGETS, Target};
use std::fmt::Write as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Longer than this and a target hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// No input is longer.
const LONGEST: usize = 1 << 20;
/// Numbers that programs trip over.
const ODD: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().and_then(|seconds| seconds.parse().ok());
    let Some(seconds) = seconds else {
        eprintln!("usage: smolpack-fuzz SECONDS [TARGET...]");
        return ExitCode::from(2);
    };
    let only: Vec<String> = args.collect();
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64)) | 1;
    println!("seed {seed} (FUZZ_SEED={seed} tries the same again)");
    for target in TARGETS.iter().filter(|target| only.is_empty() || only.iter().any(|o| o == target.name)) {
        if let Err(why) = fuzz(target, Duration::from_secs(seconds), &mut Random(seed)) {
            eprintln!("{}: {why}", target.name);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Tries mutations until the time is over; what was wrong with one is an error.
fn fuzz(target: &Target, time: Duration, random: &mut Random) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let seeds = seeds(&root.join("seeds").join(target.name))?;
    let (began, tried) = (Instant::now(), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = || watch(target.name, &tried, &over);
        std::thread::Builder::new().spawn_scoped(scope, watch).map_err(|e| e.to_string())?;
        let mut result = seeds.iter().try_for_each(|seed| attempt(target, seed));
        while result.is_ok() && began.elapsed() < time {
            let input = mutate(&seeds, random);
            result = attempt(target, &input);
            tried.fetch_add(1, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
        result
    })?;
    println!("{:<16} {} inputs in {:.0?}", target.name, tried.into_inner(), began.elapsed());
    Ok(())
}

/// Ends the process where no input is done with for too long; the input is where [`attempt`] put it.
fn watch(name: &str, tried: &AtomicU64, over: &AtomicBool) {
    let (mut last, mut since) = (0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        let now = tried.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            eprintln!("{name}: one input takes longer than {PATIENCE:?}");
            std::process::abort();
        }
    }
}

fn seeds(folder: &Path) -> Result<Vec<Vec<u8>>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths.sort();
    let seeds: Vec<_> = paths.iter().map(std::fs::read).collect::<Result<_, _>>().map_err(failed)?;
    if seeds.is_empty() { Err(format!("{} is empty", folder.display())) } else { Ok(seeds) }
}

fn attempt(target: &Target, input: &[u8]) -> Result<(), String> {
    if catch_unwind(|| (target.run)(input)).is_ok() {
        return Ok(());
    }
    let mut why = "an input made it panic".to_owned();
    let path = std::env::temp_dir().join(format!("smolpack-fuzz-{}", target.name));
    match std::fs::write(&path, input) {
        Ok(()) => {
            let _ = write!(why, "; it is in {}", path.display());
        }
        Err(e) => {
            let _ = write!(why, "; it cannot be kept in {}: {e}", path.display());
        }
    }
    Err(why)
}

/// A seed, changed in one to eight ways.
fn mutate(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = random.pick(seeds).clone();
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() + 1);
        let len = random.below((input.len() - at).min(64) + 1);
        match random.below(8) {
            0 => flip(&mut input, at, random),
            1 => {
                let odd = ODD[random.below(ODD.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)].min(input.len() - at);
                input[at..at + width].copy_from_slice(&odd[..width]);
            }
            2 => drop(input.drain(at..at + len)),
            3 => {
                let copy = input[at..at + len].to_vec();
                let to = random.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            4 => input.insert(at, random.next() as u8),
            5 => {
                // The rest of another seed.
                let other = random.pick(seeds);
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => input.truncate(at),
            _ => input.extend((0..random.below(200)).map(|_| random.next() as u8)),
        }
    }
    input.truncate(LONGEST);
    input
}

fn flip(input: &mut [u8], at: usize, random: &mut Random) {
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

/// Xorshift; the same seed gives the same numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 8) as usize % end
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
