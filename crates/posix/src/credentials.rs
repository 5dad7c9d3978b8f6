//! The process that sent a request: its user, its groups and its capabilities.
//!
//! A request carries only the user and the group. The rest comes from the process's status (proc(5)), which
//! is read only if an answer depends on it.

use std::{fs, path::Path};

/// Capabilities by their numbers (capabilities(7), linux/capability.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Ignores the permissions of files (`CAP_DAC_OVERRIDE`).
    DacOverride = 1,
    /// Acts as the owner of every file (`CAP_FOWNER`).
    Fowner = 3,
    /// Keeps set-group-id bits of groups that the process is not in (`CAP_FSETID`).
    Fsetid = 4,
    /// Changes the flags of immutable and append-only files (`CAP_LINUX_IMMUTABLE`).
    LinuxImmutable = 9,
    /// Administers the file system (`CAP_SYS_ADMIN`).
    SysAdmin = 21,
    /// Exceeds the limits of quota (`CAP_SYS_RESOURCE`).
    SysResource = 24,
}

/// The credentials that a request carries: the user, the group and the process that it comes from (`struct ucred` of
/// unix(7)). Further rights follow from the status of the process.
#[derive(Debug, Clone, Copy)]
pub struct Credentials {
    /// User ID for file access.
    pub uid: u32,
    /// Group ID for file access.
    pub gid: u32,
    /// Process ID; 0 if the process is not visible in our PID namespace.
    pub pid: u32,
}

impl Credentials {
    /// Returns true if the caller has a capability in the user namespace of the mount. If its capabilities
    /// are unknown, root has all of them.
    pub fn has(self, capability: Capability) -> bool {
        self.status().map_or(self.uid == 0, |known| known.has(capability, self.pid))
    }

    /// Returns true if the caller is a member of a group, or a capability exempts it (Linux,
    /// `in_group_or_capable`).
    pub fn is_in(self, gid: u32) -> bool {
        self.gid == gid || self.status().map_or(self.uid == 0, |known| known.is_in(gid, self.pid))
    }

    /// Returns true if the caller is known to be a member of a group, whatever its capabilities.
    pub fn is_member(self, gid: u32) -> bool {
        self.gid == gid || self.status().is_some_and(|known| known.groups.contains(&gid))
    }

    /// Returns true if the caller is known not to be a member of a group. The groups behind a kernel service
    /// such as nfsd are unknown.
    pub fn is_outside(self, gid: u32) -> bool {
        self.gid != gid && self.status().is_some_and(|known| !known.is_in(gid, self.pid))
    }

    /// Reads the status of the process, if the request was made with its credentials. Requests by a kernel thread
    /// or a stacked file system carry other credentials.
    fn status(self) -> Option<ProcessStatus> {
        if self.pid == 0 {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        ProcessStatus::parse(&status).filter(|known| (known.uid, known.gid) == (self.uid, self.gid))
    }
}

/// The part of the status of a process (proc(5)) that determines its access to files.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStatus {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Effective capabilities, one bit each.
    capabilities: u64,
}

impl ProcessStatus {
    /// Parses the status of a process (proc(5)).
    fn parse(status: &str) -> Option<ProcessStatus> {
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        // The columns are real, effective, saved and file-system ID.
        let of_files = |name: &str| field(name)?.split_whitespace().nth(3)?.parse().ok();
        Some(ProcessStatus {
            uid: of_files("Uid")?,
            gid: of_files("Gid")?,
            groups: field("Groups")?.split_whitespace().filter_map(|group| group.parse().ok()).collect(),
            capabilities: u64::from_str_radix(field("CapEff")?, 16).ok()?,
        })
    }

    fn is_in(&self, gid: u32, pid: u32) -> bool {
        self.groups.contains(&gid) || self.has(Capability::Fsetid, pid)
    }

    fn has(&self, capability: Capability, pid: u32) -> bool {
        self.capabilities & 1 << capability as u32 != 0
            && (shares_user_namespace(pid)).unwrap_or(self.uid == 0)
    }
}

/// Returns true if a process is in our user namespace, which is that of the mount. Capabilities in another
/// namespace do not count. Returns `None` if the namespace cannot be read.
fn shares_user_namespace(pid: u32) -> Option<bool> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/user")).ok();
    Some(namespace(Path::new("/proc/self"))? == namespace(&Path::new("/proc").join(pid.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tUid: 0\nPid:\t77\nUid:\t1000\t0\t0\t1000\nGid:\t100\t100\t100\t101\n\
                          Groups:\t4 24 1000 \nCapInh:\t0000000000000000\nCapEff:\t0000000001200010\n";

    #[test]
    fn credentials_are_those_of_access_to_files() {
        let known = ProcessStatus::parse(STATUS).unwrap();
        assert_eq!((known.uid, known.gid, &known.groups[..]), (1000, 101, &[4, 24, 1000][..]));
        let pid = std::process::id();
        use Capability as C;
        let has = [C::Fsetid, C::SysAdmin, C::SysResource, C::Fowner, C::DacOverride, C::LinuxImmutable]
            .map(|capability| known.has(capability, pid));
        assert_eq!(has, [true, true, true, false, false, false]);
        assert!(known.is_in(24, pid) && known.is_in(5, pid), "with CAP_FSETID");
        let none = ProcessStatus { capabilities: 0, ..known };
        assert!(none.is_in(24, pid) && !none.is_in(5, pid));
        assert_eq!(ProcessStatus::parse("Uid:\t0\t0\t0\t0\n"), None);
    }

    #[test]
    fn root_has_every_capability_if_its_process_is_unknown() {
        let invisible = |uid| Credentials { uid, gid: uid, pid: 0 };
        assert!(invisible(0).has(Capability::SysAdmin) && invisible(0).is_in(5));
        assert!(!invisible(1000).has(Capability::SysAdmin) && !invisible(1000).is_in(5));
        assert!(!invisible(1000).is_outside(5), "unknown");
    }

    #[test]
    fn a_request_with_other_credentials_than_its_process_is_judged_by_its_user() {
        let process = std::process::id();
        let lent = Credentials { uid: 123_456, gid: 123_456, pid: process };
        assert!(!lent.has(Capability::SysAdmin) && !lent.is_outside(5));
    }
}
