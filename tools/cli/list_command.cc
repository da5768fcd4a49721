// psctl list: prints the named values, page by page.

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/cli/command.h"
#include "tools/cli/connection.h"
#include "tools/cli/table.h"

namespace psd::cli {
namespace {

void AppendPage(const v1::ListValuesReply& page, v1::ListValuesReply& all) {
  all.MergeFrom(page);
  all.set_next_page_token(page.next_page_token());
}

}  // namespace

absl::Status RunList(const Options& options, const std::vector<std::string>& arguments) {
  Connection connection(options);
  v1::ListValuesRequest request;
  if (!arguments.empty()) request.set_prefix(arguments[0]);
  v1::ListValuesReply all;
  do {
    v1::ListValuesReply page;
    absl::Status asked = connection.Call(&v1::ParameterService::Stub::List, request, &page);
    if (!asked.ok()) return asked;
    AppendPage(page, all);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());

  if (options.json) {
    google::protobuf::util::JsonPrintOptions print;
    print.always_print_primitive_fields = true;
    print.preserve_proto_field_names = true;
    std::string text;
    if (!google::protobuf::util::MessageToJsonString(all, &text, print).ok())
      return absl::InternalError("the answer cannot be printed as JSON");
    std::printf("%s\n", text.c_str());
    return absl::OkStatus();
  }
  Table table({"NAME", "KIND", ">VERSION", ">MEMORY"});
  const int rows =
      std::min({all.names_size(), all.kinds_size(), all.versions_size(), all.bytes_size()});
  for (int i = 0; i < rows; ++i) {
    table.AddRow({all.names(i), all.kinds(i),
                  all.versions(i) == 0 ? "-" : absl::StrCat(all.versions(i)),
                  FormatBytes(all.bytes(i))});
  }
  if (!table.empty()) std::printf("%s", table.ToString(options.color).c_str());
  return absl::OkStatus();
}

}  // namespace psd::cli
