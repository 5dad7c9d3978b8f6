//! Requests for extended attributes, and ioctls, those of encryption among them.

use f2fs::engine::XattrMode;
use fuse_protocol::{
    Errno, Output, Request, Response, SetXattr, SetXattrForm, WhenCrowded,
    abi::{self, init_flags},
    put_xattr,
};
use posix::{
    CallerMemory, Credentials, EncryptionRequest, GroupIdBit, OpenFor, Result, VerityRequest, ioctl,
};

use super::{Adapter, caller_of, content::use_of};
use crate::mounts;

impl Adapter {
    pub(super) fn set_xattr(&self, request: &mut Request<'_>) -> Result<()> {
        let form = match request.negotiated.has(init_flags::SETXATTR_EXT) {
            true => SetXattrForm::Extended,
            false => SetXattrForm::Plain,
        };
        let SetXattr { name, value, flags, clears_set_group_id } =
            SetXattr::parse(&mut request.arguments, form)?;
        let (caller, ino) = (caller_of(request.header), self.ino(request.header.node));
        let group_id_bit = match clears_set_group_id {
            Some(true) => GroupIdBit::Cleared,
            Some(false) => GroupIdBit::Kept,
            None => GroupIdBit::ByGroup,
        };
        self.fs.set_xattr(caller, ino, name, value, xattr_mode(flags)?, group_id_bit)
    }

    pub(super) fn get_xattr(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let room = request.arguments.take::<abi::GetxattrIn>()?.size;
        let value = self.fs.get_xattr(self.ino(request.header.node), request.arguments.name()?)?;
        put_xattr(output, &value, room)
    }

    pub(super) fn list_xattrs(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let room = request.arguments.take::<abi::GetxattrIn>()?.size;
        let names = self.fs.list_xattrs(caller_of(request.header), self.ino(request.header.node))?;
        put_xattr(output, &names, room)
    }

    pub(super) fn ioctl(&self, request: &mut Request<'_>, response: &mut Response) -> Result<()> {
        let (ino, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::IoctlIn { handle, command, argument, in_bytes, .. } = request.arguments.take()?;
        let data = request.arguments.bytes(in_bytes)?;
        let accesses_memory = [
            EncryptionRequest::accesses_memory(command).then(|| self.fs.has_encryption()),
            VerityRequest::accesses_memory(command, data).then(|| self.fs.has_verity()),
        ];
        if let Some(has_feature) = accesses_memory.into_iter().flatten().next() {
            if !has_feature {
                return Err(Errno::OPNOTSUPP);
            }
            self.fs.require_memory_access(caller)?;
        }
        let memory = CallerMemory { pid: request.header.pid, address: argument };
        if let Some(asked) = VerityRequest::parse(command, data, memory)? {
            let is_refused = || asked.changes() && self.is_remounted_read_only();
            let call = self.fs.begin_call(caller, &is_refused)?;
            let watched = request.watch();
            let is_interrupted = || watched.is_interrupted();
            let answer = self.fs.verity_ioctl_within(&call, ino, asked, memory, &is_interrupted)?;
            response.output.put(&abi::IoctlOut { result: answer.result, ..Default::default() });
            response.output.extend(&answer.bytes);
            self.drop_attributes(request.header.node);
            return Ok(());
        }
        if let Some(asked) = EncryptionRequest::parse(command, data, memory)? {
            let is_refused = || asked.changes() && self.is_remounted_read_only();
            let call = self.fs.begin_call(caller, &is_refused)?;
            put_ioctl(&self.fs.encryption_ioctl_within(&call, ino, asked, memory)?, &mut response.output);
            self.drop_attributes(request.header.node);
            return Ok(());
        }
        let asked = ioctl::Request::parse(command, data).ok_or(Errno::NOTTY)?;
        let is_refused = || asked.changes() && self.is_remounted_read_only();
        let call = self.fs.begin_call(caller, &is_refused)?;
        if let ioctl::Request::Trim(range) = asked {
            let watched = request.watch();
            let trimmed = self.fs.trim_within(&call, range, &|| watched.is_interrupted())?;
            put_ioctl(&range.done(trimmed), &mut response.output);
            return Ok(());
        }
        if asked.protects() && self.fs.has_writer(ino) {
            self.protect(asked, request.header.node, (caller, use_of(handle)), response);
            return Ok(());
        }
        put_ioctl(&self.fs.ioctl_within(&call, ino, use_of(handle), &asked)?, &mut response.output);
        // Flags are attributes, and the kernel does not know that setting them changes others.
        self.drop_attributes(request.header.node);
        Ok(())
    }

    /// Answers an ioctl that [protects](ioctl::Request::protects) a file. Dirty pages from before can still be written back
    /// now; afterwards their writes would be refused. Processes that are about to write wait until it is answered.
    fn protect(
        &self,
        asked: ioctl::Request,
        node: u64,
        (caller, open_for): (Credentials, OpenFor),
        response: &mut Response,
    ) {
        let (fs, connection, ino) = (self.fs.clone(), self.connection.clone(), self.ino(node));
        let (device, protection) = (self.device, self.cache.begin_protection(ino));
        self.drop_attributes(node);
        let reply = response.defer();
        self.kernel_write_back.then(vec![node], reply, WhenCrowded::Refuse, move |output| {
            if let (ioctl::Request::ReleaseSaved, Some(errno)) = (&asked, protection.failure()) {
                return Err(errno);
            }
            // The mount may have become read-only while the kernel wrote.
            let call = fs.begin_call(caller, &|| is_read_only(device))?;
            put_ioctl(&fs.ioctl_within(&call, ino, open_for, &asked)?, output);
            let _ = connection.invalidate_attributes(node);
            Ok(())
        });
    }

    /// Returns true if the file system was remounted read-only (`mount -o remount,ro`). The kernel enforces
    /// that itself except for requests that it does not know to be changes.
    pub(super) fn is_remounted_read_only(&self) -> bool {
        is_read_only(self.device)
    }
}

fn is_read_only(device: Option<(u32, u32)>) -> bool {
    device.is_some_and(|device| block::mounts().is_ok_and(|all| mounts::is_read_only(&all, device)))
}

fn put_ioctl(answer: &[u8], output: &mut Output) {
    output.put(&abi::IoctlOut::default());
    output.extend(answer);
}

fn xattr_mode(flags: u32) -> Result<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        3 => Ok(XattrMode::CreateAndReplace),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_setxattr_are_decoded() {
        assert_eq!([xattr_mode(3), xattr_mode(4)], [Ok(XattrMode::CreateAndReplace), Err(Errno::INVAL)]);
    }
}
