output "greeting" {
  description = "The greeting."
  value       = terraform_data.greeting.output
}

output "guests" {
  description = "Who got a letter, in order."
  value       = sort(keys(terraform_data.letter))
}

output "letters" {
  description = "The ID of each guest's letter."
  value       = { for guest, letter in terraform_data.letter : guest => letter.id }
}

output "shouting" {
  value = upper(local.greeting)
}

output "password" {
  value     = var.password
  sensitive = true
}
