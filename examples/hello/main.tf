# The example that `hawser local` takes when it is given no directory.
#
# It needs no provider, no account and no network: `terraform_data` is built into terraform and tofu. Try
#
#   hawser local                                      plan, ask, apply
#   hawser local --var name=Ada --var 'guests=["Grace", "Linus"]'
#   hawser local --plan                               only look
#   hawser local --destroy                            take it down again

terraform {
  required_version = ">= 1.4"
}

locals {
  greeting = "Hello, ${var.name}!"
}

# Stands for something that exists somewhere. Its input is kept in the state.
resource "terraform_data" "greeting" {
  input = local.greeting
}

# Stands for work that takes a moment and talks while it is at it.
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
