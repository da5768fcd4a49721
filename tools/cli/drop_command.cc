// psctl drop: removes a name.

#include <cstdio>
#include <string>

#include "tools/cli/command.h"
#include "tools/cli/connection.h"
#include "tools/cli/table.h"

namespace psd::cli {

absl::Status RunDrop(const Options& options, const std::vector<std::string>& arguments) {
  Connection connection(options);
  v1::OpenSessionRequest open;
  open.set_client("psctl");
  v1::OpenSessionReply session;
  absl::Status status = connection.Call(&v1::ParameterService::Stub::OpenSession, open, &session);
  if (!status.ok()) return status;

  v1::DropRequest drop;
  drop.mutable_header()->set_session(session.session());
  drop.mutable_header()->set_sequence(1);
  drop.set_name(arguments[0]);
  v1::DropReply dropped;
  status = connection.Call(&v1::ParameterService::Stub::Drop, drop, &dropped);

  // If this call does not reach the owner, the session ends with its lease.
  v1::CloseSessionRequest close;
  close.set_session(session.session());
  v1::CloseSessionReply closed;
  static_cast<void>(connection.Call(&v1::ParameterService::Stub::CloseSession, close, &closed));
  if (!status.ok()) return status;
  std::printf("dropped %s from %s\n", Printable(arguments[0]).c_str(),
              Printable(session.worker()).c_str());
  return absl::OkStatus();
}

}  // namespace psd::cli
