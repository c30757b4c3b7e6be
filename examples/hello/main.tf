# The module that `hawser local` runs if you give it no directory.
#
# It needs no provider, no account, and no network: `terraform_data` is built into Terraform and OpenTofu.

terraform {
  required_version = ">= 1.4"
}

locals {
  greeting = "Hello, ${var.name}!"
}

# Represents something that exists somewhere. Its input is stored in the state.
resource "terraform_data" "greeting" {
  input = local.greeting
}

# Represents work that takes a moment and prints something.
resource "terraform_data" "letter" {
  for_each = toset(var.guests)

  triggers_replace = [local.greeting, each.key]

  provisioner "local-exec" {
    command = "echo \"Dear $GUEST,\"; sleep 1; echo \"$GREETING\""
    environment = {
      GUEST    = each.key
      GREETING = terraform_data.greeting.output
    }
  }
}
