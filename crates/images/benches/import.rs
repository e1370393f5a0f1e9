//! Import of an archive compared with `tar -x` of the same archive, in turns.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "it measures, and prints the result"
)]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use images::{ImportOptions, Source, Store};
use model::ImageName;

/// The tree: numbers of files, and bytes of each.
const TREE: &[(usize, usize)] = &[(12_000, 4 << 10), (4_000, 40 << 10), (280, 1 << 20)];
const ROUNDS: usize = 7;

fn main() {
    let place = std::env::temp_dir().join(format!("shoal-import-{}", std::process::id()));
    let _ = fs::remove_dir_all(&place);
    let bytes = make(&place.join("tree"));
    run("tar", &["-cf", "tree.tar", "-C", "tree", "."], &place);
    fs::remove_dir_all(place.join("tree")).unwrap();
    println!("{} MB in {} files", bytes / 1_000_000, TREE.iter().map(|kind| kind.0).sum::<usize>());
    let (mut tar, mut synced, mut import) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        fs::create_dir(place.join("out")).unwrap();
        run("sync", &[], &place);
        let begin = Instant::now();
        run("tar", &["-xf", "tree.tar", "-C", "out"], &place);
        tar.push(begin.elapsed());
        run("sync", &["-f", "out"], &place);
        synced.push(begin.elapsed());
        fs::remove_dir_all(place.join("out")).unwrap();
        run("sync", &[], &place);
        let begin = Instant::now();
        let store = Store::open(&place.join("store")).unwrap();
        let name = ImageName::new("bench").unwrap();
        let source = Source::Path(place.join("tree.tar"));
        let mut watch = |_: &_| ControlFlow::Continue(());
        store.import(source, &name, &ImportOptions::default(), &mut watch).unwrap();
        import.push(begin.elapsed());
        fs::remove_dir_all(place.join("store")).unwrap();
    }
    fs::remove_dir_all(&place).unwrap();
    let (tar, synced, import) = (median(tar), median(synced), median(import));
    println!("tar -x                {:>6} ms", tar.as_millis());
    println!("tar -x, then sync     {:>6} ms", synced.as_millis());
    println!("import, synced        {:>6} ms", import.as_millis());
    println!("import / tar -x              {:.2}", import.as_secs_f64() / tar.as_secs_f64());
    println!("import / (tar -x, then sync) {:.2}", import.as_secs_f64() / synced.as_secs_f64());
}

fn make(tree: &Path) -> usize {
    let mut total = 0;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for (kind, &(files, size)) in TREE.iter().enumerate() {
        for n in 0..files {
            let directory = tree.join(format!("{kind}/{}/{}", n % 40, n % 7));
            fs::create_dir_all(&directory).unwrap();
            let mut bytes = Vec::with_capacity(size);
            while bytes.len() < size {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes.extend_from_slice(&state.to_le_bytes());
            }
            fs::write(directory.join(n.to_string()), &bytes).unwrap();
            total += bytes.len();
        }
    }
    total
}

fn run(program: &str, arguments: &[&str], place: &Path) {
    let status = Command::new(program).args(arguments).current_dir(place).status().unwrap();
    assert!(status.success(), "{program}");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
