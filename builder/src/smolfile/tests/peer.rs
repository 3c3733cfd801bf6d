//! Files as smolvm's users write them must mean the same here.

use super::*;

#[test]
fn a_gateway_that_names_its_port_listen() {
    let file = parse(
        "image = \"example/gateway:main\"\nentrypoint = [\"gateway\"]\ncmd = [\"--port\", \"18789\"]\n\
         cpus = 2\nmemory = 1024\nnet = true\n\n[service]\nlisten = 18789\nprotocol = \"http\"\n\n\
         [dev]\nports = [\"18789:18789\"]\n",
    )
    .unwrap();
    let service = file.service.unwrap();
    assert_eq!((service.port, service.listen), (18789, None));
}

#[test]
fn a_docker_machine_without_an_image() {
    let file = parse(
        "cpus = 2\nmemory = 2048\nnet = true\nstorage = 20\ndocker_socket = true\ninit = [\n  \"apk update -q\",\n  \
         # the engine\n  \"apk add docker -q\",\n  \"mkdir -p /storage/docker /var/lib/docker\",\n]\n",
    )
    .unwrap();
    assert_eq!((file.image, file.init.len(), file.docker_socket), (None, 3, true));
}

#[test]
fn an_agent_sandbox_from_an_archive_with_an_allow_list() {
    let file = parse(
        "image = \"./sandbox.tar\"\ncpus = 8\nmemory = 8192\nstorage = 100\noverlay = 100\nnet = true\n\
         net_backend = \"virtio-net\"\ngpu = false\nworkdir = \"/workspace\"\ncmd = [\"sleep\", \"infinity\"]\n\
         env = [\"BASE_URL=http://10.77.0.1:8080/v1\"]\n\n[dev]\nuser = \"agent\"\n\n\
         [network]\nallow_cidrs = [\"10.77.0.1/32\", \"191.168.1.6\"]\nallow_hosts = [\"pypi.org\"]\n",
    )
    .unwrap();
    assert_eq!(file.dev.user.as_deref(), Some("agent"));
    assert_eq!(file.network.allow_cidrs[1], Cidr("191.168.1.6/32".into()));
}

#[test]
fn a_desktop_with_a_script_as_its_command() {
    let file = parse("entrypoint = [\"/bin/sh\", \"-lc\"]\ncmd = [\"\"\"\nset -eu\nexec weston \\\n  --idle-time=0\n\"\"\"]\n")
        .unwrap();
    assert_eq!(file.cmd.unwrap(), ["set -eu\nexec weston --idle-time=0\n"]);
}

#[test]
fn a_workspace_mounted_for_an_editor() {
    let file = parse(
        "image = \"python:3.12-alpine\"\nvolumes = [\"./:/workspace\", \"/home/u/.agents:/home/agent/.agents:ro\"]\n\
         user = \"1000:1000\"\n[auth]\nssh_agent = false\n",
    )
    .unwrap();
    assert_eq!((file.volumes[0].host.as_str(), file.volumes[1].read_only), ("./", true));
}

#[test]
fn what_was_optional_stays_optional() {
    assert_eq!(parse("[health]\ninterval = \"1m\"").unwrap().health, None);
    assert_eq!(parse("[restart]\nmax_retries = 2").unwrap().restart.unwrap().policy, Policy::Never);
    assert_eq!(parse("entrypoint = []\ncmd = []").unwrap(), Smolfile::default());
}

#[test]
fn what_is_not_asked_for_is_not_refused() {
    let text = "gpu = false\ngpu_vram = 4096\ncuda = false\nauto_graph = false\nrosetta = false\n\
                block_io = \"sync\"\n[fork]\nenabled = true\n";
    assert_eq!(parse(text).unwrap(), Smolfile::default());
}
