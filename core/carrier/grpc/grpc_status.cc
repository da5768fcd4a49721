#include "core/carrier/grpc/grpc_status.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace psd::carrier {

absl::Status DialError(const std::string& address, const grpc::Status& status) {
  const std::string& text = status.error_message();
  if (absl::StrContains(text, "Connection refused")) {
    return absl::UnavailableError(absl::StrCat("connection refused: nobody listens at ", address));
  }
  if (absl::StrContains(text, "DNS resolution failed")) {
    return absl::UnavailableError(
        absl::StrCat("name not found: ", address, " does not resolve (", text, ")"));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnavailableError(absl::StrCat("no psd worker answers at ", address, ": ", text));
  }
  return absl::UnavailableError(absl::StrCat("cannot open a link to ", address, ": ",
                                             text.empty() ? "the peer ended it" : text));
}

absl::Status LostError(const std::string& address, const grpc::Status& status) {
  const std::string& text = status.error_message();
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    return absl::InvalidArgumentError(absl::StrCat(address, " sent too much: ", text));
  }
  return absl::UnavailableError(
      absl::StrCat("lost the link to ", address, text.empty() ? "" : ": ", text));
}

}  // namespace psd::carrier
