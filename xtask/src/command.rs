//! Runs other programs and turns their failures into sentences. Processes that outlive the call are
//! started by `cluster::processes`.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

/// A command with its arguments.
pub fn command<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs it to its end and gives what it wrote to its standard output.
///
/// # Errors
/// When it cannot be started or its status is not 0; the message carries the command line and what it
/// wrote to its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    finished(command, None)
}

/// Like [`output`], with `input` as its standard input.
///
/// # Errors
/// As [`output`].
pub fn output_with(command: &mut Command, input: &str) -> Result<String> {
    finished(command, Some(input))
}

/// Whether it ran and ended with status 0; what it says is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Where a program is found: in `PATH`, or in the folders that only root's `PATH` has.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// The command line as a person would type it.
pub fn described(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

fn finished(command: &mut Command, input: Option<&str>) -> Result<String> {
    let words = described(command);
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{words}`"))?;
    if let (Some(text), Some(mut pipe)) = (input, child.stdin.take()) {
        // A program that stops reading early says why with its status, which tells more than this error.
        let _ = pipe.write_all(text.as_bytes());
    }
    let Output { status, stdout, stderr } =
        child.wait_with_output().with_context(|| format!("cannot wait for `{words}`"))?;
    if !status.success() {
        bail!("`{words}` failed ({status}): {}", String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let failure = output(&mut command("sh", ["-c", "echo broken >&2; exit 3"])).unwrap_err().to_string();
        assert!(failure.contains("sh -c"), "{failure}");
        assert!(failure.contains("broken"), "{failure}");
    }

    #[test]
    fn input_reaches_the_program() {
        assert_eq!(output_with(&mut command("cat", [""; 0]), "hello").unwrap(), "hello");
    }
}
