#include "server/services/reflection_answer.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/support/status.h>

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace psd::server {
namespace {

constexpr size_t kMaxEchoedBytes = size_t{4} << 10;

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using grpc::reflection::v1alpha::ExtensionRequest;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

// The most bytes of a client's name that an error text quotes.
constexpr size_t kMaxShownBytes = 256;

const DescriptorPool& Pool() {
  return *DescriptorPool::generated_pool();
}

void Fail(grpc::StatusCode code, const std::string& message, ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(message);
}

void FailUnknown(absl::string_view what, absl::string_view name,
                 ServerReflectionResponse& response) {
  Fail(grpc::StatusCode::NOT_FOUND,
       absl::StrCat("no ", what, " '", absl::CHexEscape(name.substr(0, kMaxShownBytes)),
                    "' in this server; list_services says where to begin"),
       response);
}

void AddFile(const FileDescriptor& file, absl::flat_hash_set<const FileDescriptor*>& added,
             ServerReflectionResponse& response) {
  if (!added.insert(&file).second) return;
  FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(response.mutable_file_descriptor_response()->add_file_descriptor_proto());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, response);
}

// Adds the file and all files that it imports, directly or indirectly, each once.
void AnswerFile(const FileDescriptor& file, ServerReflectionResponse& response) {
  absl::flat_hash_set<const FileDescriptor*> added;
  AddFile(file, added, response);
}

void AnswerExtension(const ExtensionRequest& request, ServerReflectionResponse& response) {
  const Descriptor* type = Pool().FindMessageTypeByName(request.containing_type());
  if (type == nullptr) return FailUnknown("message type", request.containing_type(), response);
  const FieldDescriptor* extension = Pool().FindExtensionByNumber(type, request.extension_number());
  if (extension == nullptr) {
    return FailUnknown(absl::StrCat("extension ", request.extension_number(), " of the type"),
                       request.containing_type(), response);
  }
  AnswerFile(*extension->file(), response);
}

void AnswerExtensionNumbers(const std::string& type_name, ServerReflectionResponse& response) {
  const Descriptor* type = Pool().FindMessageTypeByName(type_name);
  if (type == nullptr) return FailUnknown("message type", type_name, response);
  std::vector<const FieldDescriptor*> extensions;
  Pool().FindAllExtensions(type, &extensions);
  auto& numbers = *response.mutable_all_extension_numbers_response();
  numbers.set_base_type_name(type->full_name());
  for (const FieldDescriptor* extension : extensions)
    numbers.add_extension_number(extension->number());
  std::sort(numbers.mutable_extension_number()->begin(), numbers.mutable_extension_number()->end());
}

void AnswerFileByName(const std::string& name, ServerReflectionResponse& response) {
  const FileDescriptor* file = Pool().FindFileByName(name);
  if (file == nullptr) return FailUnknown("file", name, response);
  AnswerFile(*file, response);
}

void AnswerFileOfSymbol(const std::string& symbol, ServerReflectionResponse& response) {
  const FileDescriptor* file = Pool().FindFileContainingSymbol(symbol);
  if (file == nullptr) return FailUnknown("symbol", symbol, response);
  AnswerFile(*file, response);
}

void AnswerServices(const std::vector<std::string>& services, ServerReflectionResponse& response) {
  auto& list = *response.mutable_list_services_response();
  for (const std::string& service : services) list.add_service()->set_name(service);
}

}  // namespace

ServerReflectionResponse AnswerReflection(const ServerReflectionRequest& request,
                                          const std::vector<std::string>& services) {
  ServerReflectionResponse response;
  if (request.host().size() <= kMaxEchoedBytes) response.set_valid_host(request.host());
  // A huge request is not sent back: the answer waits in memory for a reader that may be slow.
  if (request.ByteSizeLong() <= kMaxEchoedBytes) *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      AnswerFileByName(request.file_by_filename(), response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      AnswerFileOfSymbol(request.file_containing_symbol(), response);
      break;
    case ServerReflectionRequest::kFileContainingExtension:
      AnswerExtension(request.file_containing_extension(), response);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      AnswerExtensionNumbers(request.all_extension_numbers_of_type(), response);
      break;
    case ServerReflectionRequest::kListServices:
      AnswerServices(services, response);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      Fail(grpc::StatusCode::INVALID_ARGUMENT,
           "the request asks nothing that this server knows; list_services says where to begin",
           response);
      break;
  }
  return response;
}

}  // namespace psd::server
