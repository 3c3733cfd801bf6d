//! The runner process: one machine, from the first message on the control socket to its end.

use crate::chain::chain;
use crate::control::{Ended, Event, Failed, Launch, Request, Started};
use crate::ipc::Channel;
use crate::kvm::{Host, Stop};
use crate::machine::{Live, Sources, launch};
use crate::timings::Timings;
use rustix::event::{PollFd, PollFlags, poll};
use smolpack_format::Artifact;
use std::error::Error;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// How often a VM is made anew when KVM has no memory for its first run.
const MAX_ATTEMPTS: u32 = 3;

/// Runs one machine as told over `channel`, and says there how it ended.
///
/// Returns when the machine is over, or when the other end of the channel is closed.
pub fn run(channel: &Channel) {
    let last = match serve(channel) {
        Ok(None) => return,
        Ok(Some(event)) => event,
        Err(failed) => Event::Failed(failed),
    };
    // If this fails nobody listens any more.
    let _ = channel.send(&last, &[]);
}

/// How a machine's main loop ended.
#[derive(Debug)]
enum Over {
    /// To be told to the parent.
    Event(Event),
    /// The parent is gone.
    Abandoned,
    /// KVM refused the first run; a new VM may do.
    FirstRunRefused,
}

fn serve(channel: &Channel) -> Result<Option<Event>, Failed> {
    let Some((request, artifact, console)) = receive_launch(channel)? else { return Ok(None) };
    let mut timings = Timings::start();
    let host = Host::open().map_err(|e| fail(&e, e.hint()))?;
    timings.done("KVM opened");
    let artifact = Artifact::from_file(artifact).map_err(|e| fail(&e, None))?;
    timings.done("artifact opened");
    let sources = Sources { host: &host, artifact: &artifact, console: &console };
    until_run(|attempt| {
        let launched = launch(&sources, &request, &mut timings).map_err(|e| fail(&e, e.hint()))?;
        let live = launched.machine.run().map_err(|e| fail(&e, e.hint()))?;
        timings.done("CPUs started");
        if attempt == 1 {
            let started = Started {
                restored: launched.restored,
                cold_reason: launched.cold_reason,
                timings_us: timings.steps(),
            };
            say(channel, &Event::Started(started))?;
        }
        main_loop(channel, live, &sources)
    })
}

/// Has `machine` make and run one until KVM lets it run; its argument counts from 1.
fn until_run(mut machine: impl FnMut(u32) -> Result<Over, Failed>) -> Result<Option<Event>, Failed> {
    for attempt in 1..=MAX_ATTEMPTS {
        match machine(attempt)? {
            Over::Event(event) => return Ok(Some(event)),
            Over::Abandoned => return Ok(None),
            Over::FirstRunRefused => {}
        }
    }
    let message = format!("KVM had no memory for the first run of {MAX_ATTEMPTS} virtual machines");
    Err(Failed::new(&message, Some("free some memory, or raise the memory limit of this control group")))
}

/// The first message, with artifact and console log.
fn receive_launch(channel: &Channel) -> Result<Option<(Launch, File, File)>, Failed> {
    let Some((request, fds)) = receive(channel)? else { return Ok(None) };
    let descriptors = <[OwnedFd; 2]>::try_from(fds);
    match (request, descriptors) {
        (Request::Launch(launch), Ok([artifact, console])) => {
            Ok(Some((launch, artifact.into(), console.into())))
        }
        (Request::Launch(_), Err(_)) => Err(protocol("launch needs the artifact and the console log")),
        _ => Err(protocol("the first message must be launch")),
    }
}

/// Serves devices and parent until the machine is over.
fn main_loop(channel: &Channel, live: Live, sources: &Sources<'_>) -> Result<Over, Failed> {
    loop {
        let ready = wait(channel, &live)?;
        if ready.devices {
            live.devices().handle_events().map_err(|e| fail(&e, None))?;
        }
        if ready.cpus
            && let Some(stop) = live.cpus().stopped()
        {
            finish(live)?;
            return over(stop);
        }
        if !ready.parent {
            continue;
        }
        match receive(channel)? {
            None => return Ok(Over::Abandoned),
            Some((Request::Connect { port }, fds)) => connect(&live, port, fds)?,
            Some((Request::Kill, _)) => {
                finish(live)?;
                return Ok(Over::Event(Event::Ended(Ended::Killed)));
            }
            Some((Request::Snapshot, fds)) => return snapshot(live, fds, sources),
            Some((Request::Launch(_), _)) => return Err(protocol("there is a machine already")),
        }
    }
}

/// What [`wait`] found to do.
struct Ready {
    parent: bool,
    devices: bool,
    cpus: bool,
}

fn wait(channel: &Channel, live: &Live) -> Result<Ready, Failed> {
    let devices = live.devices().epoll_fd();
    let mut fds = [
        PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(devices, PollFlags::IN),
        PollFd::from_borrowed_fd(live.cpus().as_fd(), PollFlags::IN),
    ];
    rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(|e| fail(&std::io::Error::from(e), None))?;
    let [parent, devices, cpus] = fds.map(|fd| !fd.revents().is_empty());
    Ok(Ready { parent, devices, cpus })
}

fn connect(live: &Live, port: u32, fds: Vec<OwnedFd>) -> Result<(), Failed> {
    let [stream] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| protocol("connect needs one stream"))?;
    live.devices().connect(port, UnixStream::from(stream));
    Ok(())
}

/// Pauses the machine and writes it down; it is over afterwards.
fn snapshot(live: Live, fds: Vec<OwnedFd>, sources: &Sources<'_>) -> Result<Over, Failed> {
    let [file] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| protocol("snapshot needs one file"))?;
    let machine = match live.pause() {
        Ok(machine) => machine,
        Err(stop) => return over(stop),
    };
    let written = machine.snapshot(sources.host, sources.artifact, file.into());
    written.map_err(|e| fail(&e, Some("check that there is room for the guest's memory in that folder")))?;
    Ok(Over::Event(Event::SnapshotTaken))
}

fn finish(live: Live) -> Result<(), Failed> {
    live.finish().map_err(|e| Failed::new(&format!("cannot write the console's log: {e}"), None))
}

fn over(stop: Stop) -> Result<Over, Failed> {
    match stop {
        Stop::Ended(ended) => Ok(Over::Event(Event::Ended(ended))),
        Stop::FirstRunRefused => Ok(Over::FirstRunRefused),
        Stop::Failed(message) => Err(Failed::new(&message, None)),
        Stop::Paused => Err(protocol("a CPU paused without being asked")),
    }
}

fn receive(channel: &Channel) -> Result<Option<(Request, Vec<OwnedFd>)>, Failed> {
    channel.receive().map_err(|e| fail(&e, None))
}

fn say(channel: &Channel, event: &Event) -> Result<(), Failed> {
    channel.send(event, &[]).map_err(|e| fail(&e, None))
}

fn fail(error: &(dyn Error + 'static), hint: Option<&str>) -> Failed {
    Failed::new(&chain(error), hint)
}

fn protocol(what: &str) -> Failed {
    Failed::new(&format!("control socket: {what}"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_whose_first_run_is_refused_is_made_anew_and_not_for_ever() {
        let mut made = Vec::new();
        let ended = until_run(|attempt| {
            made.push(attempt);
            Ok(if attempt < 3 { Over::FirstRunRefused } else { Over::Event(Event::Ended(Ended::PowerOff)) })
        });
        assert!(matches!(ended, Ok(Some(Event::Ended(Ended::PowerOff)))), "{ended:?}");
        assert_eq!(made, [1, 2, 3]);

        let mut made = 0;
        let failed = until_run(|_| {
            made += 1;
            over(Stop::FirstRunRefused)
        });
        assert!(failed.unwrap_err().message.contains("no memory for the first run"));
        assert_eq!(made, MAX_ATTEMPTS);
    }
}
